def rendezvous_reconfigure(*a, **k):
    raise NotImplementedError
