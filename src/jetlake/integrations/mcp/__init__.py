"""Tools of the Model Context Protocol over streams, messages and consumers: `jetlake mcp` serves them."""
