#include "comm/group/world.h"

#include <utility>

namespace ivy::comm {

Result<std::unique_ptr<Communicator>> make_world(Job& job) {
  Job::World world = IVY_TRY(job.form_world());
  LocalPart part = make_local_part(job, "world", world.seats, world.self, std::move(world.segment));
  return std::make_unique<Communicator>(job, "world", std::move(world.seats), world.self,
                                        std::move(part.alarm), std::move(part.group),
                                        world.timeout);
}

}  // namespace ivy::comm
