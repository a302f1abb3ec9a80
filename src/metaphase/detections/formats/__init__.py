"""One module a file format; each turns a file into the detection table and back."""
