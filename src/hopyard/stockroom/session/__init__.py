"""Sessions: an open stockroom's state, and what moves its working tree.

``session.StockSession`` has the standing of the working tree, writes that are not committed, and open blocks. The
other modules are the calls of ``StockRoom`` as functions of a session: names, moves, exchange with remotes, queries.
"""
