#include "agent/node/containment.h"

#include "agent/node/cgroup.h"
#include "agent/node/process_tree.h"

namespace ivy {

std::unique_ptr<Containment> make_containment(const ContainmentRequest& request) {
  Result<std::unique_ptr<Containment>> cgroup = make_cgroup(request);
  if (cgroup.ok()) return std::move(cgroup).value();
  // TODO(soon): an ordinary user with a systemd of his own ($XDG_RUNTIME_DIR/systemd/private) gets
  // a delegated cgroup here, by "systemd-run --user --scope -p Delegate=yes" around the warden.
  return std::make_unique<ProcessTree>(request, cgroup.error().message);
}

}  // namespace ivy
