// SPDX-License-Identifier: Apache-2.0
// ivyctl doctor: executes ivyrun, because hosts must be reached in the same way as by a job.
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "launcher/ctl/ctl_launcher.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_verbs.h"
#include "proto/os/process.h"

namespace ivy {

int ctl_doctor(const CtlOptions& options) {
  std::vector<std::string> words = options.words;
  const auto json = std::find(words.begin(), words.end(), "--json");
  const bool is_json = json != words.end();
  if (is_json) words.erase(json);
  words.insert(words.begin(), {"ivyrun", is_json ? "--doctor=json" : "--doctor"});
  execv(ivyrun_path().c_str(), exec_array(words).data());
  return ctl_fail(errno_error(Code::kNotFound, ivyrun_path(), errno)
                      .context("`ivyctl doctor` is `ivyrun --doctor`"));
}

}  // namespace ivy
