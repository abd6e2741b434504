"""A simulated AWS: EC2 as moto simulates it, with what moto lacks or gets wrong.

Tests, ``demo`` and ``--simulated`` use it through the real boto3 client. It needs the extra
``embedded``.
"""
