"""Other libraries' interfaces over ivycomm, for programs that shall run where those libraries are not installed."""
