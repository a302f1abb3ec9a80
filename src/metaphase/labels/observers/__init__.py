"""Several observers judge candidates, blind to one another, and their answers become labels.

`project` is the folder of what to judge, `store` keeps the answers, `consensus` makes labels of them.
"""
