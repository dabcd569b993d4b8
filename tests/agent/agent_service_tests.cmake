# SPDX-License-Identifier: Apache-2.0
# The agent's calls for jobs: the pure parts, and the rest with a real ivy-node through a service in the test process.
add_executable(agent_service_tests
  agent_cgroup_test.cc agent_drain_test.cc agent_open_test.cc agent_put_test.cc
  agent_record_test.cc agent_registry_test.cc stream_launcher.cc)
target_link_libraries(agent_service_tests PRIVATE ivy_agent_shared GTest::gtest_main)
target_compile_definitions(agent_service_tests PRIVATE
  IVY_NODE_BINARY="$<TARGET_FILE:ivy-node>"
  IVY_TEST_BUNDLES="${CMAKE_BINARY_DIR}/lib/ivyrun"
  IVY_TEST_CHILDREN="${CMAKE_BINARY_DIR}/children")
add_dependencies(agent_service_tests ivy-node ivy_bundle)
gtest_discover_tests(agent_service_tests DISCOVERY_MODE PRE_TEST
                     PROPERTIES LABELS loopback TIMEOUT 120)
