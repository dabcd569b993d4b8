// SPDX-License-Identifier: Apache-2.0
// The role `ivy-rendezvous serve`: the store as a separate process. It is started in one of these
// ways:
//
//   by host 0's supervisor   --job HEX --token-file PATH --generation N --control-fd N
//                            --native-fd N... [--torch-fd N... [--torch-connections N]]
//                            --arguments-fd N, with --torch-peers A,B... (argument_file.h)
//   by rank 0, without ivyrun
//                            --job HEX --token-fd N --generation N --control-fd N --native-fd N
//                            --owner-fd N
//   by hand                  --job HEX --token-file PATH --listen ADDRESS:PORT
//                            [--torch ADDRESS:PORT [--torch-peers A,B...]]
//
// torch cannot authenticate, so its socket is for loopback and the listed addresses only.
//
// On SIGUSR1 it prints the number of requests that it has served.
//
// The control descriptor is a stream socket that carries lines. The store receives "generation N",
// which it confirms with the same line, "put KEY VALUE", "quit", and "complete": new clients are
// rejected, connected ones are still served. It sends "ready", "log TEXT", "stall TEXT" (the wait
// graph, after --stall-seconds without progress) and "end TEXT" (why it exits by itself). When the
// socket closes, the store exits. If it was started by hand, it writes the same lines to standard
// output.
//
// With --owner-fd, a pidfd, the store is a background process that serves its owner's job. When the
// owner exits, the control descriptor closes or "quit" arrives, it accepts no more clients and
// exits when its last connection closes. With --token-fd the token is read from that descriptor.
#pragma once

namespace ivy::store {

// Takes the arguments after "rendezvous" or "ivy-rendezvous". Returns the process's exit code.
int run_rendezvous(int argc, char** argv);

}  // namespace ivy::store
