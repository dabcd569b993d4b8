// From the store's words to ranks: the store knows torch's clients by process and address only, the
// launcher knows which rank on which host that process is. Pure. Thread: any.
#pragma once

#include <string>
#include <string_view>

#include "proto/wire/ctl.pb.h"

namespace ivy {

// The store's explanation (rendezvous/engine/explanation.h) with "rank R (host H, pid P)" for every
// "pid P at ADDRESS" that is exactly one rank's own process; where there are several hosts, with
// the host and its ranks behind other clients whose address is one host's only. What is not certain
// stays as it was. A key's line ends with the ranks that are not connected where every client is
// known to be a rank; a last line names the ranks that have ended: they will write nothing any
// more.
std::string explain_ranks(std::string_view explanation, const ctl::StoreDescription& store);

// Every line two columns to the right.
std::string indented(std::string_view text);

}  // namespace ivy
