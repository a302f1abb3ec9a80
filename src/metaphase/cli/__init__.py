"""The `metaphase` command: parse, call a public function, print."""
