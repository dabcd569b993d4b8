// The communicator of all ranks of the job.
#pragma once

#include <memory>

#include "comm/group/communicator.h"
#include "comm/group/job.h"
#include "proto/contract/status.h"

namespace ivy::comm {

// Collective over all ranks; waits for them, and names those who did not come. `job` outlives it.
Result<std::unique_ptr<Communicator>> make_world(Job& job);

}  // namespace ivy::comm
