// SPDX-License-Identifier: Apache-2.0
#include "agent/node/facts/own_package.h"

#include <sys/stat.h>

namespace ivy {
namespace {

bool exists(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0;
}

std::string parent(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace

std::string own_package(const std::string& program_directory) {
  if (program_directory.empty()) return "";
  const std::string installed = parent(program_directory) + "/lib/ivyrun/python";
  if (exists(installed + "/ivycomm/__init__.py")) return installed;
  const std::string sent = program_directory + "/ivycomm.zip";
  return exists(sent) ? sent : "";
}

std::string own_hook(const std::string& program_directory) {
  if (program_directory.empty()) return "";
  const std::string installed = parent(program_directory) + "/lib/ivyrun/hook";
  for (const std::string& folder : {installed, program_directory})
    if (exists(folder + "/sitecustomize.py")) return folder;
  return "";
}

std::string own_nccl_profiler(const std::string& program_directory) {
  if (program_directory.empty()) return "";
  const std::string name = "/libivy_nccl_profiler.so";
  for (const std::string& folder : {parent(program_directory) + "/lib/ivyrun", program_directory})
    if (exists(folder + name)) return folder + name;
  return "";
}

void append_package(Environment& environment, const std::string& package) {
  if (package.empty() || package.find(':') != std::string::npos) return;
  const std::string* before = find_variable(environment, "PYTHONPATH");
  // Python treats an empty value as unset, but an empty element as the working directory.
  const bool is_first = before == nullptr || before->empty();
  set_variable(environment, "PYTHONPATH", is_first ? package : *before + ":" + package);
}

}  // namespace ivy
