// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/link_step.h"

#include <array>
#include <cstdio>

namespace ivy {

std::string upload_text(const std::string& percent, const std::string& total, double mb_per_s) {
  std::array<char, 32> rate{};
  if (mb_per_s > 0) std::snprintf(rate.data(), rate.size(), ", %.1f MB/s", mb_per_s);
  return percent + " % of " + total + rate.data();
}

RemoteText LinkStep::whole_text() const {
  if (!upload) return text;
  return text + " (" +
         upload_text(std::to_string(upload->percent), upload->total, upload->mb_per_s) + ")";
}

LinkStep sending_step(RemoteText text, std::optional<UploadState> upload) {
  LinkStep step(std::move(text),
                "allow more time: --start-timeout 10m (each host gets ivy-node once)");
  step.upload = std::move(upload);
  return step;
}

}  // namespace ivy
