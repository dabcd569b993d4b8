// Advice that only the launcher can give, because it alone sees all ranks. Pure; thread: any.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "launcher/diagnostic.h"
#include "launcher/verdict.h"

namespace ivy {

// On several hosts, workers away from host 0 that time out or are refused at localhost: the script
// has most likely overwritten MASTER_ADDR. Nothing when that is not what happened.
std::optional<Diagnostic> overwritten_master_address(const std::vector<WorkerEnd>& ends,
                                                     const std::string& first_host,
                                                     const std::string& master_address);

}  // namespace ivy
