"""`audit-ckpt`: what is in this file, is it the model we think it is, where does every parameter come from.

files.py         what the file is             headers.py   safetensors headers without loading
classify.py      prefixes, class of model     expected.py  what the assembled model consists of
coverage.py      expected against found       architecture.py  sizes that the shapes show
provenance.py    a source for everything      health.py    gates, non-finite, zeros, dtypes
verdict.py       passed, partial or failed    examine.py   all of it, without writing
trainable.py     may this world be trained on  torch_files.py  torch archives, no code run
"""
