"""Many items, and who does them.

- `batch`: the items of a cohort, one after the other; a bad one is recorded and the others go on. Every
  command over slides uses it. `--shard i/n` (`shard_of`) is the part of a job array's task.
- `leases`: what makes a folder safe that several processes write into, whoever started them: two commands,
  the tasks of a job array, Nextflow, Snakemake, or Dask's workers. Each item is done under one.
- `workers`: many machines, by Dask: workers of this machine (`--workers`), of a scheduler that runs already
  (`--scheduler`) or of a queueing system (`--cluster`) take the items of a batch in this process's place.
"""
