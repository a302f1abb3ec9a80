// nextflow run deploy/metaphase.nf -with-docker metaphase --manifest cohort.csv --results results --shards 4
params.manifest = 'cohort.csv'
params.results = 'results'
params.shards = 4
process detect {
    containerOptions "-v ${file(params.manifest).parent}:${file(params.manifest).parent}:ro -v ${file(params.results)}:${file(params.results)}"
    input: val shard
    script: "metaphase detect --manifest ${file(params.manifest)} -o ${file(params.results)} --shard ${shard}/${params.shards}"
}
workflow { detect(channel.of(1..params.shards)) }
