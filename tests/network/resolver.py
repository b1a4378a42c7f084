"""A small name server for tests: IPv4 addresses of names, which it keeps for a while as those of clusters do."""

import socket
import struct
import threading
import time


class Resolver:
    """A name server that keeps its answers for `keeps` seconds, and for `keeps_absence` that there is no such name."""

    def __init__(self, address):
        self.lock = threading.Lock()
        self.addresses, self.kept, self.silent = {}, {}, False
        self.keeps = self.keeps_absence = 0
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind((address, 53))
        threading.Thread(target=self.serve, daemon=True).start()

    def set(self, name, *addresses):
        with self.lock:
            self.addresses[name] = addresses

    def known_until(self, name):
        """When what is kept of a name is forgotten."""
        with self.lock:
            return self.kept.get(name, (None, 0))[1]

    def lookup(self, name):
        now = time.monotonic()
        addresses, until = self.kept.get(name, (None, 0))
        if now >= until:
            addresses = self.addresses.get(name)
            self.kept[name] = (addresses, now + (self.keeps_absence if addresses is None else self.keeps))
        return addresses

    def serve(self):
        while True:
            query, client = self.socket.recvfrom(512)
            labels, at = [], 12
            while query[at]:
                labels.append(query[at + 1:at + 1 + query[at]].decode())
                at += 1 + query[at]
            question = query[12:at + 5]
            (kind,) = struct.unpack("!H", query[at + 1:at + 3])
            with self.lock:
                if self.silent:
                    continue
                addresses = self.lookup(".".join(labels).lower())
            answers = []
            if addresses is not None and kind == 1:
                answers = [struct.pack("!HHHLH", 0xC00C, 1, 1, 0, 4) + socket.inet_aton(address) for address in addresses]
            # A recursive server's answer; NXDOMAIN where there is no such name.
            flags = 0x8180 | (0 if addresses is not None else 3)
            self.socket.sendto(query[:2] + struct.pack("!HHHHH", flags, 1, len(answers), 0, 0) + question + b"".join(answers), client)
