"""`python -m regard`, for where the script is not on the path."""

from regard.cli import main

if __name__ == "__main__":
    main()
