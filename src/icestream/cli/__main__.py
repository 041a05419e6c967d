"""`python -m icestream.cli`: the same as `icestream`."""

from icestream.cli.main import main

if __name__ == "__main__":
    main()
