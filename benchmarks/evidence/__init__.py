"""Results of benchmarks that are kept as files, and the pages whose figures come from them."""
