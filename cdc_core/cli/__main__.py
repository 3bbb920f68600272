"""`python -m cdc_core.cli`: the command line of exactly this Python."""

from cdc_core.cli.app import main

main()
