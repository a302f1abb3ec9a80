"""One module a file format; each turns a file into the detection table. `reading` chooses among them."""
