// SPDX-License-Identifier: Apache-2.0
#include "agent/node/container/container_runtime.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "proto/contract/text.h"

namespace ivy {
namespace {

ContainerMount mount(const std::string& source, const std::string& target, bool read_only) {
  ContainerMount made;
  made.set_source(source);
  made.set_target(target);
  made.set_read_only(read_only);
  return made;
}

ContainerSetting setting(const std::string& image) {
  ContainerSetting setting;
  setting.wanted.set_image(image);
  setting.name = "ivy-0123-0";
  setting.node = "/opt/ivy/ivy-node";
  setting.socket = "/job/container.sock";
  setting.image_file = "/job/image.sqsh";
  setting.mounts = {mount("/job", "/job", false)};
  return setting;
}

std::string run_line(const std::string& runtime, const ContainerSetting& setting) {
  return joined(container_commands(runtime, setting).run, " ");
}

TEST(ContainerRuntime, StartsPodmanWithoutNamespacesThatWorkersCannotJoin) {
  ContainerSetting own = setting("docker.io/library/python:3.12");
  *own.wanted.add_mounts() = mount("/data", "/d", true);
  own.wanted.add_arguments("--hostname");
  own.wanted.add_arguments("a b");
  const CommandWords words = container_commands("podman", own).run;
  EXPECT_EQ(joined(words, " "),
            "podman run --rm --name ivy-0123-0 --pull never --network host --ipc host --pid host "
            "--security-opt label=disable --workdir / --user 0:0 --volume /data:/d:ro "
            "--volume /job:/job --hostname a b --entrypoint /opt/ivy/ivy-node "
            "docker.io/library/python:3.12 container-hold /job/container.sock");
  EXPECT_EQ(std::count(words.begin(), words.end(), "a b"), 1);
}

TEST(ContainerRuntime, KeepsTheUsersIdInRootlessPodman) {
  ContainerSetting own = setting("x:1");
  own.user = 1000;
  EXPECT_NE(run_line("podman", own).find(" --userns keep-id "), std::string::npos);
  EXPECT_NE(run_line("docker", own).find(" --user 1000:0 "), std::string::npos);
  EXPECT_NE(run_line("apptainer", own).find(" --userns "), std::string::npos);
}

TEST(ContainerRuntime, UsesTheRuntimesOwnFlagsForGpus) {
  ContainerSetting own = setting("x:1");
  own.has_nvidia = true;
  EXPECT_NE(run_line("podman", own).find(" --device nvidia.com/gpu=all "), std::string::npos);
  EXPECT_NE(run_line("docker", own).find(" --gpus all "), std::string::npos);
  EXPECT_NE(run_line("apptainer", own).find(" --nv "), std::string::npos);
  own.has_nvidia = false;
  own.has_amd = true;
  EXPECT_NE(run_line("apptainer", own).find(" --rocm "), std::string::npos);
  EXPECT_NE(run_line("podman", own).find(" --device /dev/kfd "), std::string::npos);
}

TEST(ContainerRuntime, WritesImageNamesAsEachRuntimeExpects) {
  const auto pull = [](const std::string& runtime, const std::string& image) {
    return joined(container_commands(runtime, setting(image)).get_image, " ");
  };
  EXPECT_EQ(pull("podman", "docker://quay.io/a/b:1"), "podman pull --quiet quay.io/a/b:1");
  EXPECT_EQ(pull("enroot", "nvcr.io/nvidia/pytorch:25.01"),
            "enroot import --output /job/image.sqsh docker://nvcr.io#nvidia/pytorch:25.01");
  EXPECT_EQ(pull("enroot", "docker.io/library/python:3"),
            "enroot import --output /job/image.sqsh docker://library/python:3");
  EXPECT_NE(run_line("apptainer", setting("a/b:1")).find(" docker://a/b:1 "), std::string::npos);
  EXPECT_NE(run_line("apptainer", setting("library://a")).find(" library://a "), std::string::npos);
}

TEST(ContainerRuntime, PullsNoFiles) {
  const ContainerCommands commands = container_commands("enroot", setting("/images/a.sqsh"));
  EXPECT_TRUE(commands.get_image.empty());
  EXPECT_EQ(joined(commands.create, " "), "enroot create --name ivy-0123-0 /images/a.sqsh");
  EXPECT_EQ(runtime_of_image("/images/a.sqsh"), "enroot");
  EXPECT_EQ(runtime_of_image("a.sif"), "apptainer");
  EXPECT_EQ(runtime_of_image("a:1"), "");
}

TEST(ContainerRuntime, PrefersTheUsersMountAndSortsTargets) {
  ContainerSetting own = setting("x:1");
  own.mounts = {mount("/proj/job", "/proj/job", false), mount("/proj", "/proj", false)};
  *own.wanted.add_mounts() = mount("/other", "/proj", true);
  EXPECT_NE(run_line("podman", own).find("--volume /other:/proj:ro --volume /proj/job:/proj/job "),
            std::string::npos);
}

TEST(ContainerRuntime, ReplacesNothingInTextsOfTheUser) {
  EXPECT_NE(run_line("podman", setting("{name}")).find(" {name} "), std::string::npos);
}

TEST(ContainerRuntime, ExplainsCommonErrors) {
  EXPECT_NE(container_advice("docker", "dial unix /var/run/docker.sock: Permission denied")
                .find("usermod -aG docker"),
            std::string::npos);
  EXPECT_NE(container_advice("podman", "Error: unresolvable CDI devices: CDI device x")
                .find("nvidia-ctk cdi generate"),
            std::string::npos);
  EXPECT_EQ(container_advice("podman", "something else"), "");
}

}  // namespace
}  // namespace ivy
