// SPDX-License-Identifier: Apache-2.0
// The role `ivy-node pmi`: PMI-1's server for the ranks of one host and of one generation
// (dialects/pmi_host.h). The supervisor starts it when the first rank connects:
//
//   ivy-node pmi --listen-fd N --job ID --generation G --host K --hosts H --ranks-on-hosts 2,2
//            --host-names a,b --directory JOBDIR [--loopback-fd N]
//            [--token-file FILE [--store ADDRESS]]
//
// --listen-fd is a listening Unix socket, --loopback-fd a TCP socket for libraries that connect on
// their own. Without a store, ranks of different hosts cannot communicate.
//
// A client connects, sends a line "rank R" (a library sends "cmd=initack"), and speaks PMI-1 from
// then on. Clients of other users are rejected. Standard output has events, one line each: "joined
// RANK", "left RANK", "abort RANK CODE TEXT", "vanished RANK", "error TEXT" (the server cannot
// continue, so the job fails). An event is written before its rank is answered. Standard error has
// lines for the user.
#pragma once

namespace ivy::store {

// Takes the arguments after "pmi". Returns the process's exit code.
int run_pmi(int argc, char** argv);

}  // namespace ivy::store
