"""Jobs over files and streams: typed requests in, results and events out, nothing printed."""
