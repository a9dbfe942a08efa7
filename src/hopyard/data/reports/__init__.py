"""Looking at datasets: summaries, throughput, and a page about one."""
