// `ivy-rendezvous` beside the tests of the store, which do not wait for the node binary.
#include "rendezvous/server/serve.h"

int main(int argc, char** argv) { return ivy::store::run_rendezvous(argc - 1, argv + 1); }
