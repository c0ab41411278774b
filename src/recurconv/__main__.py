"""``python -m recurconv``."""

from recurconv.cli import main

if __name__ == "__main__":
    main()
