// SPDX-License-Identifier: Apache-2.0
// The role `ivy-rendezvous serve`: a store in a process of its own. Ways to start it:
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
// torch cannot authenticate: its socket is for loopback and the listed addresses only.
//
// On SIGUSR1 it says how many requests it has served.
//
// The control descriptor is a stream socket that carries lines. Down: "generation N", "quit", and
// "complete": new clients are refused, connected ones are still served. Up: "ready", "log TEXT",
// "stall TEXT" (the wait graph, after --stall-seconds without progress), "end TEXT" (why it ends by
// itself). When the socket closes, the store exits. Started by hand, it writes the same lines to
// standard output.
//
// --owner-fd, a pidfd: the store is a background process of its own that lives for its owner's job.
// When the owner ends (or the control descriptor does, or "quit" comes) it takes no new client, and
// exits with the connection of its last one. With --token-fd the token is read from that
// descriptor.
#pragma once

namespace ivy::store {

// Takes the argv after "rendezvous" or "ivy-rendezvous". Returns the process's exit code.
int run_rendezvous(int argc, char** argv);

}  // namespace ivy::store
