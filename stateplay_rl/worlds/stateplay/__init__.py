"""Backend `stateplay`: the user's own checkout behind the `World` protocol.

symbols.py   what is expected of a checkout, and where it is       checkout.py  commit, dirty state, import
networks.py  its classes, built and filled from weight files       masters.py   float32 weights in a bf16 model
world.py     the protocol on top of `model_fn_stateplay_latent`
"""
