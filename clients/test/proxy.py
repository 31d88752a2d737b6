"""A proxy before the server, which can lose a reply, or hand it over in crumbs."""

import random
import socket
import threading


class Proxy:
    """Threads pump bytes between clients and a server on localhost."""

    def __init__(self, server_port, seed):
        self.server_port = server_port
        self.chance = random.Random(seed)
        self.crumbs = False
        self.lose = None            # in lower case: the reply to a request with this is lost
        self.lost = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def lose_reply(self, request):
        """Lose the next reply to such a request, and both connections with it."""
        self.lost.clear()
        self.lose = request

    def close(self):
        self.listener.close()

    def _accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(("127.0.0.1", self.server_port))
            except OSError:
                client.close()
                continue
            pair = {"request": b"", "sockets": (client, server)}
            for one in pair["sockets"]:
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._pump, args=(pair, client, server, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(pair, server, client, False), daemon=True).start()

    def _pump(self, pair, source, target, to_server):
        try:
            while data := source.recv(65536):
                if to_server:
                    pair["request"] += data.lower()
                elif self.lose and self.lose in pair["request"]:
                    self.lose = None
                    self.lost.set()
                    break
                else:
                    pair["request"] = b""
                self._send(target, data, to_server)
        except OSError:
            pass
        for one in pair["sockets"]:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def _send(self, target, data, whole):
        while data:
            count = len(data) if whole or not self.crumbs else self.chance.randrange(1, 30)
            target.sendall(data[:count])
            data = data[count:]
