// SPDX-License-Identifier: Apache-2.0
#include "agent/node/container/container_runtime.h"

#include <algorithm>
#include <array>

#include "proto/contract/text.h"

namespace ivy {
namespace {

// A template is split at blanks. These words become any number of words: {user}, {mounts}, {gpus},
// {arguments}. These become texts: {image}, {name}, {node}, {socket}, {file}.
struct Runtime {
  std::string_view name = {};
  std::string_view image_file = {};  // The ending of images that only this runtime can read.
  std::string_view has_image = {}, get_image = {}, create = {}, run = {}, remove = {};
  std::string_view as_root = {}, as_user = {};  // {user}
  std::string_view mount = {};  // The option in front of SOURCE:TARGET, which one of these follows:
  std::string_view read_write = {}, read_only = {};
  std::string_view nvidia = {}, amd = {}, infiniband = {};  // {gpus}
};

// Workers leave the network, IPC and pid namespaces as they are (README.md here), so the container
// must not create others. SELinux would not let it use the job's directory (label=disable).
constexpr std::array kRuntimes = {
    Runtime{.name = "podman",
            .has_image = "podman image exists {image}",
            .get_image = "podman pull --quiet {image}",
            .run =
                "podman run --rm --name {name} --pull never --network host --ipc host --pid host "
                "--security-opt label=disable --workdir / {user} {mounts} {gpus} {arguments} "
                "--entrypoint {node} {image} container-hold {socket}",
            .remove = "podman rm --force {name}",
            .as_root = "--user 0:0",
            .as_user = "--userns keep-id",
            .mount = "--volume",
            .read_only = ":ro",
            .nvidia = "--device nvidia.com/gpu=all",
            .amd = "--device /dev/kfd --device /dev/dri --group-add keep-groups",
            .infiniband = "--device /dev/infiniband"},
    Runtime{
        .name = "apptainer",
        .image_file = ".sif",
        .run =
            "apptainer exec --cleanenv --pwd / {user} {mounts} {gpus} {arguments} {image} {node} "
            "container-hold {socket}",
        // Only root could enter a container of Apptainer's setuid program.
        .as_user = "--userns",
        .mount = "--bind",
        .read_only = ":ro",
        .nvidia = "--nv",
        .amd = "--rocm"},
    Runtime{.name = "enroot",
            .image_file = ".sqsh",
            .get_image = "enroot import --output {file} {image}",
            .create = "enroot create --name {name} {file}",
            .run = "enroot start --rw {mounts} {gpus} {arguments} {name} {node} container-hold "
                   "{socket}",
            .remove = "enroot remove --force {name}",
            .mount = "--mount",
            .read_write = ":none:x-create=auto,rbind",
            .read_only = ":none:x-create=auto,rbind,ro",
            .nvidia = "--env NVIDIA_VISIBLE_DEVICES=all"},
    Runtime{.name = "docker",
            .has_image = "docker image inspect {image}",
            .get_image = "docker pull --quiet {image}",
            .run = "docker run --rm --name {name} --network host --ipc host --pid host "
                   "--security-opt label=disable --workdir / {user} {mounts} {gpus} {arguments} "
                   "--entrypoint {node} {image} container-hold {socket}",
            .remove = "docker rm --force {name}",
            .as_root = "--user {uid}:{gid}",
            .as_user = "--user {uid}:{gid}",
            .mount = "--volume",
            .read_only = ":ro",
            .nvidia = "--gpus all",
            .amd = "--device /dev/kfd --device /dev/dri",
            .infiniband = "--device /dev/infiniband"},
};

bool is_image_file(std::string_view image) {
  return image.starts_with('/') || image.starts_with("./") || image.starts_with("../") ||
         !runtime_of_image(image).empty();
}

// Enroot separates the registry by '#': docker://nvcr.io#nvidia/pytorch:25.01-py3.
std::string enroot_uri(std::string_view name) {
  const std::size_t slash = name.find('/');
  const std::string_view registry = name.substr(0, slash);
  const bool has_registry = slash != std::string_view::npos && name.find('#') == name.npos &&
                            registry.find_first_of(".:") != std::string_view::npos;
  if (!has_registry) return "docker://" + std::string(name);
  const bool is_default = registry == "docker.io";
  return "docker://" + (is_default ? std::string() : std::string(registry) + "#") +
         std::string(name.substr(slash + 1));
}

// Docker's and Podman's names work with all runtimes, and so does docker://NAME.
std::string image_name(const Runtime& runtime, const std::string& image) {
  constexpr std::string_view kDocker = "docker://";
  const bool has_scheme = image.find("://") != std::string::npos;
  std::string_view bare = image;
  if (bare.starts_with(kDocker)) bare.remove_prefix(kDocker.size());
  if (is_image_file(image) || (has_scheme && bare.size() == image.size())) return image;
  if (runtime.name == "apptainer") return std::string(kDocker) + std::string(bare);
  if (runtime.name == "enroot") return enroot_uri(bare);
  return std::string(bare);
}

class Expansion {
 public:
  Expansion(const Runtime& runtime, const ContainerSetting& setting)
      : runtime_(runtime), setting_(setting) {}

  CommandWords words(std::string_view text) const {
    CommandWords words;
    for (const std::string_view word : words_of(text)) {
      if (word == "{user}") {
        append(setting_.user == 0 ? runtime_.as_root : runtime_.as_user, words);
      } else if (word == "{mounts}") {
        append_mounts(words);
      } else if (word == "{gpus}") {
        if (setting_.has_nvidia) append(runtime_.nvidia, words);
        if (setting_.has_amd) append(runtime_.amd, words);
        if (setting_.has_infiniband) append(runtime_.infiniband, words);
      } else if (word == "{arguments}") {
        words.insert(words.end(), setting_.wanted.arguments().begin(),
                     setting_.wanted.arguments().end());
      } else {
        words.push_back(replaced(word));
      }
    }
    return words;
  }

 private:
  void append(std::string_view text, CommandWords& words) const {
    for (const std::string_view word : words_of(text)) words.push_back(replaced(word));
  }

  // Targets are sorted, so that a mount never hides another one below it. Of two with the same
  // target, the user's counts.
  void append_mounts(CommandWords& words) const {
    std::vector<ContainerMount> mounts(setting_.wanted.mounts().begin(),
                                       setting_.wanted.mounts().end());
    for (const ContainerMount& own : setting_.mounts) {
      const bool is_known = std::any_of(mounts.begin(), mounts.end(), [&](const auto& known) {
        return known.target() == own.target();
      });
      if (!is_known) mounts.push_back(own);
    }
    std::stable_sort(mounts.begin(), mounts.end(), [](const auto& one, const auto& other) {
      return one.target() < other.target();
    });
    for (const ContainerMount& mount : mounts) {
      words.emplace_back(runtime_.mount);
      words.push_back(mount.source() + ":" + mount.target() +
                      std::string(mount.read_only() ? runtime_.read_only : runtime_.read_write));
    }
  }

  std::string replaced(std::string_view word) const {
    std::string text;
    while (!word.empty()) {
      const std::size_t open = std::min(word.find('{'), word.size());
      text += word.substr(0, open);
      word.remove_prefix(open);
      if (word.empty()) break;
      const std::size_t end = std::min(word.find('}'), word.size() - 1);
      text += value_of(word.substr(1, end - 1));
      word.remove_prefix(end + 1);
    }
    return text;
  }

  std::string value_of(std::string_view name) const {
    if (name == "image") return image_name(runtime_, setting_.wanted.image());
    if (name == "name") return setting_.name;
    if (name == "node") return setting_.node;
    if (name == "socket") return setting_.socket;
    if (name == "file") return setting_.image_file;
    if (name == "uid") return std::to_string(setting_.user);
    return std::to_string(setting_.group);  // gid
  }

  const Runtime& runtime_;
  const ContainerSetting& setting_;
};

const Runtime& runtime_named(const std::string& name) {
  const auto found = std::find_if(kRuntimes.begin(), kRuntimes.end(),
                                  [&](const Runtime& row) { return row.name == name; });
  return found == kRuntimes.end() ? kRuntimes.front() : *found;
}

// Texts of error messages, in lower case, and the advice for them. The first match counts.
struct Advice {
  std::string_view runtime;  // Empty: any.
  std::string_view text;
  std::string_view fix;
};

constexpr Advice kAdvice[] = {
    {"docker", "permission denied",
     "let the user run docker there (sudo usermod -aG docker USER, then log in again), or use "
     "--container-runtime podman, which needs no daemon"},
    {"docker", "cannot connect to the docker daemon",
     "start it there: sudo systemctl start docker; or use --container-runtime podman, which needs "
     "no daemon"},
    {"", "cdi device",
     "describe the GPUs for podman there: sudo nvidia-ctk cdi generate "
     "--output=/etc/cdi/nvidia.yaml (package nvidia-container-toolkit)"},
    {"", "could not select device driver",
     "install nvidia-container-toolkit there, then: sudo nvidia-ctk runtime configure && sudo "
     "systemctl restart docker"},
    {"", "nvidia-container-cli", "install libnvidia-container-tools there, and check nvidia-smi"},
    {"", "newuidmap",
     "give the user subordinate ids there: sudo usermod --add-subuids 100000-165535 --add-subgids "
     "100000-165535 USER (package uidmap)"},
    {"", "subuid",
     "give the user subordinate ids there: sudo usermod --add-subuids 100000-165535 --add-subgids "
     "100000-165535 USER (package uidmap)"},
    {"", "user namespace",
     "allow user namespaces there: sudo sysctl kernel.unprivileged_userns_clone=1 "
     "user.max_user_namespaces=15000, and kernel.apparmor_restrict_unprivileged_userns=0 on "
     "Ubuntu"},
    {"", "cannot clone: operation not permitted",
     "allow user namespaces there: sudo sysctl kernel.unprivileged_userns_clone=1 "
     "user.max_user_namespaces=15000, and kernel.apparmor_restrict_unprivileged_userns=0 on "
     "Ubuntu"},
    {"", "short-name", "write the whole name of the image, such as docker.io/library/python:3.12"},
    {"", "unauthorized", "check the name of the image, or log in to its registry there"},
    {"", "denied", "check the name of the image, or log in to its registry there"},
    {"", "manifest unknown", "check the tag of the image"},
    {"", "no space left",
     "free some space there: images are stored in the user's or the daemon's "
     "storage directory"},
    {"", "dial tcp",
     "the host cannot reach the registry; copy the image there: podman save and "
     "podman load, or a .sif or .sqsh file"},
    {"", "/dev/mqueue",
     "mount it there: sudo mkdir -p /dev/mqueue && sudo mount -t mqueue none /dev/mqueue"},
    {"apptainer", "no such file", "check the path of the image, and that the host has the file"},
    {"enroot", "no such file", "check the path of the image, and that the host has the file"},
};

}  // namespace

std::vector<std::string> container_runtimes() {
  std::vector<std::string> names;
  for (const Runtime& runtime : kRuntimes) names.emplace_back(runtime.name);
  return names;
}

std::string runtime_of_image(std::string_view image) {
  for (const Runtime& runtime : kRuntimes)
    if (!runtime.image_file.empty() && image.ends_with(runtime.image_file))
      return std::string(runtime.name);
  return "";
}

ContainerCommands container_commands(const std::string& name, const ContainerSetting& setting) {
  const Runtime& runtime = runtime_named(name);
  ContainerSetting own = setting;
  // A file need not be imported.
  const bool has_file = is_image_file(setting.wanted.image());
  if (has_file) own.image_file = setting.wanted.image();
  const Expansion expansion(runtime, own);
  ContainerCommands commands;
  if (!has_file) {
    commands.has_image = expansion.words(runtime.has_image);
    commands.get_image = expansion.words(runtime.get_image);
  }
  commands.create = expansion.words(runtime.create);
  commands.run = expansion.words(runtime.run);
  commands.remove = expansion.words(runtime.remove);
  return commands;
}

std::string container_advice(const std::string& runtime, std::string_view printed) {
  const std::string text = lower_case(printed);
  for (const Advice& advice : kAdvice) {
    if (!advice.runtime.empty() && advice.runtime != runtime) continue;
    if (text.find(advice.text) != std::string::npos) return std::string(advice.fix);
  }
  return "";
}

}  // namespace ivy
