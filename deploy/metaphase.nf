// nextflow run deploy/metaphase.nf -with-docker metaphase --manifest cohort.csv --results results --jobs 4
// A bad slide is a result (errors.log, index.html) and no failed job; all else that fails is tried twice more.
params.manifest = 'cohort.csv'
params.results = 'results'
params.jobs = 4
process detect {
    errorStrategy 'retry'
    maxRetries 2
    containerOptions "-v ${file(params.manifest).parent}:${file(params.manifest).parent}:ro -v ${file(params.results)}:${file(params.results)}"
    input: val job
    script: "metaphase detect --manifest ${file(params.manifest)} -o ${file(params.results)} --allow-failed"
}
workflow { detect(channel.of(1..params.jobs)) }
