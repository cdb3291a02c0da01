"""The subcommands of ``headwater`` that belong to this package, a module each (see ``headwater_host.cli.main``)."""
