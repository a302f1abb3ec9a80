/**
 * Finds the mitoses of the open image with metaphase and shows them as detections.
 *
 * QuPath 0.5 or newer: Automate > Script editor > Run (or "Run for project"). Results, with the report, lie in the folder
 * `metaphase` of the project, or beside the slide. Run again, it keeps what still holds; another threshold costs seconds.
 */
import groovy.json.JsonSlurper

// ---- settings ----
def command = ["metaphase"]        // or its full path, as ["/home/me/.venv/bin/metaphase"]
def options = []                   // further options of `metaphase detect`, as ["--model", "breast", "--threshold", "0.9"]
def classes = ["mitotic figure", "mitotic figure: below count threshold", "non-mitotic figure"]   // of an earlier run: replaced

// ---- the slide and the folder of results ----
def server = getCurrentServer()
def files = server.getURIs().findAll { it.getScheme() == "file" }.collect { new File(it) }
if (files.size() != 1)
    throw new IllegalStateException("metaphase needs one slide in one file, and this image has ${files.size()}")
def project = getProject()
def results = new File(project != null ? project.getPath().getParent().toFile() : files[0].getParentFile(), "metaphase")
results.mkdirs()

// ---- metaphase detect ----
def log = new File(results, "qupath.log")
def call = command + ["detect", files[0].getPath(), "-o", results.getPath(), "--json"] + options
def process = new ProcessBuilder(call.collect { it.toString() }).redirectError(log).start()
process.getOutputStream().close()
def told = process.getInputStream().getText("UTF-8")
if (process.waitFor() != 0)
    throw new RuntimeException("metaphase: " + log.getText("UTF-8").trim())
def summary = new JsonSlurper().parseText(told).slides[0]
if (summary.width != server.getWidth() || summary.height != server.getHeight())
    throw new IllegalStateException("QuPath shows ${server.getWidth()} x ${server.getHeight()} px of ${summary.width} x " +
        "${summary.height}: it has cropped empty margins, so positions would be wrong. Open the image uncropped.")

// ---- into the image ----
def earlier = getDetectionObjects().findAll { it.getPathClass() != null && it.getPathClass().toString() in classes }
def circles = getAnnotationObjects().findAll { it.getPathClass() != null && it.getPathClass().toString() == "Hotspot" }
removeObjects(earlier + circles, true)
importObjectsFromFile(new File(summary.folder.toString(), "detections.geojson").getPath())
fireHierarchyUpdate()
println "${summary.name}: ${summary.detections} detections, count ${summary.count} (${summary.kind}), score ${summary.scores[0].text}"
println summary.interval_text ? "True figures in the circle: ${summary.interval_text}" : summary.interval_note
summary.warnings.each { println "beware: ${it.text}" }
println "Report: " + new File(summary.folder.toString(), "report.html").getPath()
