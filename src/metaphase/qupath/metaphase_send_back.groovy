/**
 * Sends corrected detections of the open image back to metaphase, which counts again and rewrites the report.
 *
 * Delete what is no mitosis, or give it the class "non-mitotic figure"; mark a missed mitosis by a small annotation of the
 * class "mitotic figure". One below the threshold of the count is counted when you give it the class "mitotic figure". Then run this, on an image on which `metaphase_detect.groovy` ran before.
 */
import groovy.json.JsonSlurper

// ---- settings ----
def command = ["metaphase"]        // or its full path, as ["/home/me/.venv/bin/metaphase"]
def observer = System.getProperty("user.name")           // whose review it is
def classes = ["mitotic figure", "mitotic figure: below count threshold", "non-mitotic figure"]   // what is sent; all else stays here

// ---- the folder of results ----
def server = getCurrentServer()
def files = server.getURIs().findAll { it.getScheme() == "file" }.collect { new File(it) }
if (files.size() != 1)
    throw new IllegalStateException("metaphase needs one slide in one file, and this image has ${files.size()}")
def project = getProject()
def results = new File(project != null ? project.getPath().getParent().toFile() : files[0].getParentFile(), "metaphase")
def name = files[0].getName()
def folder = new File(results, name.contains(".") ? name.substring(0, name.lastIndexOf(".")) : name)
if (!new File(folder, "summary.json").isFile())
    throw new IllegalStateException("There is no result in ${folder}: run metaphase_detect.groovy first")
def summary = new JsonSlurper().parseText(new File(folder, "summary.json").getText("UTF-8"))
if (summary.width != server.getWidth() || summary.height != server.getHeight())
    throw new IllegalStateException("The result in ${folder} is of an image of another size")

// ---- what is there now, to metaphase review ----
def kept = (getDetectionObjects() + getAnnotationObjects()).findAll {
    it.getPathClass() != null && it.getPathClass().toString() in classes
}
def edited = new File(folder, "qupath-edited.geojson")
exportObjectsToGeoJson(kept, edited.getPath(), "FEATURE_COLLECTION")
def log = new File(results, "qupath.log")
def run = { arguments ->
    def call = (command + arguments).collect { it.toString() }
    def process = new ProcessBuilder(call).redirectError(log).start()
    process.getOutputStream().close()
    def told = process.getInputStream().getText("UTF-8")
    if (process.waitFor() != 0)
        throw new RuntimeException("metaphase: " + log.getText("UTF-8").trim())
    print told
}
run(["review", "import", folder.getPath(), "--from", edited.getPath(), "--observer", observer])
run(["review", "apply", folder.getPath()])
println "Report: " + new File(folder, "report.html").getPath()
