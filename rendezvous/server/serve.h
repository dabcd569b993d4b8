// The role `ivy-rendezvous serve`: a store in a process of its own. Ways to start it:
//
//   by host 0's supervisor   --job HEX --token-file PATH --generation N --control-fd N
//                            --native-fd N... [--torch-fd N... [--torch-peers A,B...]
//                            [--torch-connections N]]
//   by rank 0, without ivyrun
//                            --job HEX --token-fd N --generation N --control-fd N --native-fd N
//                            --owner-fd N
//   by hand, for one job     --job HEX --token-file PATH --listen ADDRESS:PORT
//                            [--torch ADDRESS:PORT [--torch-peers A,B...]]
//   by hand, for many        --tokens DIRECTORY --listen ADDRESS:PORT; job_server.h
//   by the latter, per job   --job HEX --token-file PATH --adopt-fd N --idle-seconds N
//                            --job-memory MIB
//
// torch cannot authenticate: its socket is for loopback and the listed addresses only.
// --wal DIRECTORY in each of them: what was acknowledged outlives the process (wal_file.h).
//
// and the role `ivy-rendezvous leaf` (leaf_serve.h): the same options, and --root ADDRESS:PORT, the
// store's native socket. SIGUSR1 to either: it says how many requests it has served.
//
// On the control descriptor, a stream socket, travel lines. Down: "generation N", "quit", and
// "complete": who comes from now on is refused, who is there is served on. Up: "ready", "log TEXT",
// "stall TEXT" (who waits for whom, when nothing has moved for
// --stall-seconds), "end TEXT" (why it ends by itself). Its end ends the store. By hand, the same
// lines go to standard output.
//
// --owner-fd, a pidfd: the store is a background process of its own that lives for its owner's job.
// When the owner ends (or the control descriptor does, or "quit" comes) it takes no new client, and
// ends with the connection of its last one. --token-fd: the token is read from there.
#pragma once

namespace ivy::store {

// argv behind "rendezvous" or "ivy-rendezvous". Returns the process's exit code.
int run_rendezvous(int argc, char** argv);

}  // namespace ivy::store
