"""Sessions: an open stockroom's state, and what moves its working tree.

``session.Session`` has where the working tree stands, what is written and not committed, and which blocks are open. The
other modules are the calls of ``StockRoom`` as functions of a session: names, moves, exchange with remotes, queries.
"""
