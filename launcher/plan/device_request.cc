#include "launcher/plan/device_request.h"

#include "launcher/options/exports.h"
#include "proto/contract/device_vendor.h"

namespace ivy {

void add_device_request(const Options& options, const Environment& caller, Hello& hello) {
  hello.set_read_cores(options.bind_to != BindChoice::kAuto &&
                       options.bind_to != BindChoice::kNone);
  if (options.exports.empty()) return;
  const Result<Environment> exports = parse_exports(options.exports, caller);
  if (!exports.ok()) return;
  for (const EnvVariable& variable : *exports) {
    if (!is_device_mask(variable.name)) continue;
    Variable& mask = *hello.add_masks();
    mask.set_name(variable.name);
    mask.set_value(variable.value);
  }
}

}  // namespace ivy
