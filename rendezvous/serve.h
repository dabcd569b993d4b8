// The role `ivy-rendezvous serve`: a store in a process of its own. Two ways to start it:
//
//   by host 0's supervisor   --job HEX --token-file PATH --generation N --control-fd N
//                            --native-fd N... [--torch-fd N... [--torch-peers A,B...]]
//   by hand, for one job     --job HEX --token-file PATH --listen ADDRESS:PORT
//                            [--torch ADDRESS:PORT [--torch-peers A,B...]]
//
// torch cannot authenticate: its socket is for loopback and the listed addresses only.
//
// On the control descriptor, a stream socket, travel lines. Down: "generation N", "quit". Up:
// "ready", "log TEXT", "stall TEXT" (who waits for whom, when nothing has moved for
// --stall-seconds). Its end ends the store. By hand, the same lines go to standard output.
#pragma once

namespace ivy::store {

// argv behind "rendezvous" or "ivy-rendezvous". Returns the process's exit code.
int run_rendezvous(int argc, char** argv);

}  // namespace ivy::store
