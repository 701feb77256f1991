"""``pet doctor --full``: what this library does on a machine, measured, as a table and as doctor.json.

report.py       rows, the table, the file                 full.py         the sections, each in processes of its own
machine.py      versions, driver, devices                 messages.py     joining, collectives, crossing messages
cells.py        forward and gradient against NumPy        training.py     layouts, speed, recomputation, overflow
answers.py      quantised products, decoding              endings.py      kill, stop, resume

A section that crashes or hangs costs its own rows and no others.
"""
