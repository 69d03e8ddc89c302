"""A server that holds one model and answers over HTTP: translations, completions and chats, predictions.

`vanilla-transformer serve MODEL` starts it. A request becomes one or more items (`engine.py`), which one thread computes
together with those of other requests (`models.py`; `backends.py` chooses the model); `app.py` is what clients see.
"""
