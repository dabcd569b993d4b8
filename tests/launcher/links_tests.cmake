# SPDX-License-Identifier: Apache-2.0
# ivy_links_test: the transports, against scripts and a real sshd on loopback.
add_executable(ivy_links_test
  # First, because it forks wardens, for which the program must have one thread.
  local_link_test.cc
  command_output_test.cc dial_back_listener_test.cc exec_link_test.cc host_key_question_test.cc line_child_test.cc
  node_upload_test.cc remote_greeting_test.cc sequence_test.cc ssh_link_test.cc
  ssh_settings_test.cc ssh_test_host.cc step_hosts_test.cc this_host_test.cc)
target_link_libraries(ivy_links_test PRIVATE ivy_links GTest::gtest_main)
if(TARGET ivy_bundle)
  set(make_bundle "-DUNPACK=$<TARGET_FILE:ivy_unpack> -DZSTD=${IVY_ZSTD} -DLEVEL=1")
  string(APPEND make_bundle " -P ${CMAKE_SOURCE_DIR}/launcher/links/make_bundle.cmake")
  target_compile_definitions(ivy_links_test PRIVATE
    IVY_TEST_NODE="$<TARGET_FILE:ivy-node>" IVY_MAKE_BUNDLE="${make_bundle}")
  add_dependencies(ivy_links_test ivy_bundle)
endif()
gtest_discover_tests(ivy_links_test PROPERTIES LABELS loopback TIMEOUT 60)

# ivy_agent_link_test: the agent transport and its tunnel, against a scripted agent in the same process.
add_executable(ivy_agent_link_test
  agent_link_test.cc agent_tunnel_test.cc)
target_link_libraries(ivy_agent_link_test PRIVATE ivy_test_certificates ivy_agent_links GTest::gtest_main)
gtest_discover_tests(ivy_agent_link_test DISCOVERY_MODE PRE_TEST PROPERTIES LABELS loopback TIMEOUT 60)

# ivy_join_test: torchrun mode's pure parts.
add_executable(ivy_join_test join_test.cc)
target_link_libraries(ivy_join_test PRIVATE ivy_join GTest::gtest_main)
gtest_discover_tests(ivy_join_test PROPERTIES LABELS pure)
