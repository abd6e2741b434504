"""Has a command run by a server (``tests.commandserver``) with the output of this process.

``python -I -S commandclient.py SOCKET ARGUMENT...``; imports as little as possible.
"""

import json
import os
import socket
import sys

request = {"arguments": sys.argv[2:], "folder": os.getcwd(), "environment": dict(os.environ)}
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect(sys.argv[1])
    message = json.dumps(request).encode() + b"\0"
    sent = socket.send_fds(connection, [message], [0, 1, 2])
    connection.sendall(message[sent:])
    try:
        answer = connection.recv(16)
    except ConnectionResetError:
        answer = b""
if not answer:
    sys.stderr.write("the process of the command has ended without an exit code\n")
sys.exit(int(answer or b"70"))
