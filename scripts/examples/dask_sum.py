"""Dask's first example: Client() without arguments."""
from distributed import Client

if __name__ == "__main__":
    client = Client()
    total = client.submit(sum, client.map(lambda x: x * x, range(100))).result()
    print("workers", len(client.scheduler_info(n_workers=-1)["workers"]), "total", total, flush=True)
