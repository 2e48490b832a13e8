from sis.cli import main

main()
