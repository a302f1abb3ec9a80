"""Many items, and who does them.

- `batch`: the items of a cohort, one after the other; a bad one is recorded and the others go on. Every
  command over slides uses it.
- `leases`: what makes a folder safe that several processes write into, whoever started them: two commands,
  the tasks of a job array, Nextflow, Snakemake, or Dask's workers. Each item is done under one.
- `workers`: many machines, by Dask: workers of this machine, of a scheduler that runs already or of a
  queueing system (`--workers` with a number, an address or a file) do the items in this process's place.
"""
