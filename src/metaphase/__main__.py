"""`python -m metaphase`, which launchers such as torchrun need."""

from metaphase.cli.main import main

if __name__ == "__main__":
    main()
