import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashSet;
import java.util.List;
import org.apache.rocketmq.client.consumer.AllocateMessageQueueStrategy;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMachineRoomNearby;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragelyByCircle;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueByMachineRoom;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueConsistentHash;
import org.apache.rocketmq.common.message.MessageQueue;

/** Reads `strategy TAB client TAB clients TAB queues` and writes the queues of that client. */
public class Assignments {
    public static void main(String[] arguments) throws Exception {
        BufferedReader lines =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] parts = line.split("\t", -1);
            List<String> clients = new ArrayList<>(Arrays.asList(parts[2].split(",")));
            List<MessageQueue> queues = new ArrayList<>();
            for (String text : parts[3].split(",")) {
                int colon = text.lastIndexOf(':');
                int number = Integer.parseInt(text.substring(colon + 1));
                queues.add(new MessageQueue("T", text.substring(0, colon), number));
            }
            // The order that RebalanceImpl brings them into before it asks a strategy.
            Collections.sort(clients);
            Collections.sort(queues);
            List<String> mine = new ArrayList<>();
            for (MessageQueue queue : named(parts[0]).allocate("g", parts[1], queues, clients)) {
                mine.add(queue.getBrokerName() + ":" + queue.getQueueId());
            }
            System.out.println(String.join(",", mine));
        }
    }

    private static AllocateMessageQueueStrategy named(String name) {
        switch (name) {
            case "average":
                return new AllocateMessageQueueAveragely();
            case "circle":
                return new AllocateMessageQueueAveragelyByCircle();
            case "consistent_hash":
                return new AllocateMessageQueueConsistentHash();
            case "machine_room":
                AllocateMessageQueueByMachineRoom inRooms = new AllocateMessageQueueByMachineRoom();
                inRooms.setConsumeridcs(new HashSet<>(Arrays.asList("hz", "sh")));
                return inRooms;
            case "machine_room_nearby":
                return new AllocateMachineRoomNearby(new AllocateMessageQueueAveragely(), ROOMS);
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private static final AllocateMachineRoomNearby.MachineRoomResolver ROOMS =
        new AllocateMachineRoomNearby.MachineRoomResolver() {
            public String brokerDeployIn(MessageQueue queue) {
                return queue.getBrokerName().split("@")[0];
            }

            public String consumerDeployIn(String client) {
                return client.split("-")[0];
            }
        };
}
